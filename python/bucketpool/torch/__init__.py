"""bucketpool for PyTorch. Each module is imported by its name and needs torch; `import bucketpool` alone does not."""
