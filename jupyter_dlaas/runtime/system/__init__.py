"""Access to the operating system: processes, inotify, lines over sockets. Standard library only."""
