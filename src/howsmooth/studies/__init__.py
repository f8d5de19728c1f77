"""What we run: experiments as data."""
