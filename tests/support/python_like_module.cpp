// A shared library that needs symbols of Python, as Python modules do. No library provides them here.
extern "C" {
extern char PyOutriderTest_Object;
void PyOutriderTest_Function();

const char* outrider_test_object() { return &PyOutriderTest_Object; }
void (*outrider_test_function())() { return &PyOutriderTest_Function; }
}
