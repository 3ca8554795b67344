"""Files: arrays and JSON sealed by checksums, and what is kept in them."""
