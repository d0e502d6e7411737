# Builds of the index without the server: unit tests and a short fuzz run for `check`, the library that tests/index
# calls, the long fuzz run and the benchmark.
INDEX_PARTS := $(patsubst %.c,%.o,$(wildcard index/*.c))
INDEX_TESTS := test_index test_index_parts test_index_load test_index_sentences

check: $(INDEX_TESTS:%=build/check/%)
.PHONY: fuzz-index bench-index
fuzz-index: build/check/test_index_load build/check/test_index_sentences
	build/check/test_index_load 1000000
	build/check/test_index_sentences 10000000
bench-index: build/check/bench_index
	build/check/bench_index

$(INDEX_TESTS:%=build/check/%): build/check/%: build/asan/tests/%.o $(INDEX_PARTS:%=build/asan/%) | build/check
	$(CC) $(OUR_CFLAGS) $(SANITIZERS) -o $@ $^ -lm

build/check/bench_index: build/release/tests/bench_index.o $(INDEX_PARTS:%=build/release/%) | build/check
	$(CC) $(OUR_CFLAGS) $(CFLAGS) -o $@ $^ -lm

build/check/libindex.so: build/release/tests/test_index_shim.o $(INDEX_PARTS:%=build/release/%) | build/check
	$(CC) $(OUR_CFLAGS) $(CFLAGS) $(LDFLAGS_SHARED) -o $@ $^ -lm
