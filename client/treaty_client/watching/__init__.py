"""Tell an owner what a log has in the owner's name.

watches     which subjects are watched, from options or a TOML file
findings    one leaf that concerns a watch, or a broken promise of the log
tail        read new leaves, each verified against a signed checkpoint
cursor      how far each watch was told, durably
webhooks    deliver findings by Standard Webhooks
watcher     join them: the cursor never passes a finding that was not told
"""
