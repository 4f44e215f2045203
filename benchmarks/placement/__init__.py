"""Every placer on published and other rows."""
