// Keeps a library whose sources are still being written configurable.
