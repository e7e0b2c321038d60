result["shape"] = object()
