"""What each event changes. A reducer checks everything before its first change."""
