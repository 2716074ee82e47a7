"""What a step allocates: counted as it runs, or run without memory and replayed by the allocator's rules."""
