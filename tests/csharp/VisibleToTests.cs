using System.Runtime.CompilerServices;

// Compiled into the library that the tests use, and into no other.
[assembly: InternalsVisibleTo("Tests")]
