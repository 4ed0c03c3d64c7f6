"""The figures of the chapters, a module each, named as the chapter. Their numbers are computed."""
