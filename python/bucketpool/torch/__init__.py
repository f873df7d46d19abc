"""bucketpool for PyTorch. Import each module by name; they need torch, which `import bucketpool` alone does not."""
