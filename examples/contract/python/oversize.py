result["big"] = "x" * 100_000
