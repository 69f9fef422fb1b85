"""What runs in the process of a handler; needs nothing but the standard library."""
