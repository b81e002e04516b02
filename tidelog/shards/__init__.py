"""What all coordinators share: state that is a fold of one partition, and what it wants done."""
