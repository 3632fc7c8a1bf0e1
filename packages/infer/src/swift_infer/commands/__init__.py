"""The commands infer, chat, eval, serve and deploy."""
