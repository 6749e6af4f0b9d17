"""One file a family: its options, contexts, task, presets and pictures. The registry finds every module here."""
