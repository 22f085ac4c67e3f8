"""What the bounds of modules accept of right programs and refuse of wrong ones, over a folder of problems."""
