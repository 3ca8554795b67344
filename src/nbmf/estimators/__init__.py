"""What a user meets: estimators, and the answers of a fitted one."""
