"""What the cluster knows of itself: metadata records, the image they add up to, and decisions."""
