"""Access to the operating system: processes, inotify, and JSON lines over sockets. Standard library only."""
