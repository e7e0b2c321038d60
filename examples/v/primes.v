// Counts primes and returns their number.
//   mycojobs run examples/v/primes.v --env LIMIT=200000
import os

fn main() {
	mut limit := os.getenv('LIMIT').int()
	if limit < 2 {
		limit = 100000
	}
	mut composite := []bool{len: limit + 1}
	mut count := 0
	mut last := 0
	for n := 2; n <= limit; n++ {
		if composite[n] {
			continue
		}
		count++
		last = n
		for multiple := i64(n) * n; multiple <= limit; multiple += n {
			composite[int(multiple)] = true
		}
	}
	println('${count} primes up to ${limit}')
	os.write_file(os.getenv('MYCOJOBS_RESULT'), 'count=${count}\nlast=${last}\n') or { panic(err) }
}
