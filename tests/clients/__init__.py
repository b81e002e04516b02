"""Real Kafka clients against a real node: what Kafka promises them, Tidelog keeps."""
