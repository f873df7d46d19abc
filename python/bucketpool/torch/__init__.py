"""bucketpool for PyTorch. Each module is imported by its name; `import bucketpool` alone needs no PyTorch."""
