result.text = "grüße & more"
result.number = 42
result.list = {1, "two", json.null}
