process.stdout.write(Buffer.from([0xff, 0xfe, 0, 1]));
