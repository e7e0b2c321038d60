for (let i = 0; i < 4096; i++) process.stdout.write("x".repeat(1024));
