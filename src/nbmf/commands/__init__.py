"""What can be typed after `nbmf`: one module a command. Heavy modules are imported inside the functions."""
