"""What export and app agree on (manifest, preprocess), and what export can build (catalog)."""
