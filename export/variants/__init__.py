"""The forms that a model can be exported in: one file per way of making them."""
