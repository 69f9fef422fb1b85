"""Which requests are let in: decided at once and as a whole."""
