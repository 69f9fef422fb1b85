"""Times forms and processor layouts, and plans which form runs which batch size."""
