// A shared library that wants symbols of Python which no library has, as modules of Python do.
extern "C" {
extern char PyOutriderTest_Object;
void PyOutriderTest_Function();

const char* outrider_test_object() { return &PyOutriderTest_Object; }
void (*outrider_test_function())() { return &PyOutriderTest_Function; }
}
