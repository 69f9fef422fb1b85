"""Code that export and app share (manifest, preprocess), and export's models (catalog)."""
