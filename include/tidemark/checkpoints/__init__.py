"""The state that runs carry on, looked at, proven, copied, given up and handed to a live query.

| module | answers |
| --- | --- |
| `show` | what is in the buffers, and where the watermarks stand |
| `verify` | whether a checkpoint is what the inputs come to (`rebuild`) |
| `restore` | a state as a table of its own |
| `expire` | which checkpoints nothing needs any more |
| `export`, `continued` | what a live query needs to go on where a backfill ended |
"""
