"""Many runs: every link with every seed."""
