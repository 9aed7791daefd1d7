"""What each fact changes. A reducer checks everything before its first change."""
