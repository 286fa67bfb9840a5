"""Other planners and other formulations beside ours, each with what is fair about the comparison and what is not."""
