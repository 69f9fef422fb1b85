"""What makes a site of the documents: mkdocs.yml."""
