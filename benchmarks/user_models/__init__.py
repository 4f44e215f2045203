"""Models as users write them, tried as a new user would."""
