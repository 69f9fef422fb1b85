"""Pages in a real browser that reaches nothing but this machine."""
