mycojobs.progress(0.5, "half")
