"""The variants of an exported model: one file per way of building them."""
