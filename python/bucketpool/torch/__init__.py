"""PyTorch on bucketpool: each module here needs torch; `import bucketpool` does not."""
