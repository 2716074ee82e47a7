"""What a step allocates: counted as it runs, or run without memory and replayed by the allocator's rules.

| class | what it holds | ask it if |
|---|---|---|
| `Measurement` | what the allocator counted of a step that ran | you have real tensors and want peak, resident and seconds |
| `Meter` | a context in which each allocation and free is noted | you want to see inside a step, real or dry |
| `Usage` | a `Meter`'s notes, by phase, kind and module | you want to know what is in use at the peak, and who made it |
| `Log` | the same as arrays of changes, without tensors | you want to deepen, replay or compare many steps |
| `Trial` (in `formulas`) | a recipe's `Log` with seconds and traffic | you plan: it knows the recipe and all blocks |
"""
