"""Acting: starting, stopping and resuming runs, exports, serving, chatting; each as the command that one would type."""
