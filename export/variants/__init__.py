"""The variants that a model can be exported as: one file per way of making them."""
