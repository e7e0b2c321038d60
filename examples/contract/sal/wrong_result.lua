result.wrong = print
