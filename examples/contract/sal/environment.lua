result.greeting = env.GREETING
result.job = os.getenv("MYCOJOBS_JOB_ID")
