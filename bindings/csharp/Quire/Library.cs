using System;

namespace Quire
{
    /// <summary>
    /// The native library, which the first call loads: libquire.so.0, where the runtime looks for native libraries
    /// (beside the assembly, in a package's runtimes folder, LD_LIBRARY_PATH, the system's folders). Any thread may use
    /// this class.
    /// </summary>
    public static class Library
    {
        /// <summary>The version of the interface that this assembly was generated from.</summary>
        public const int InterfaceVersion = Constants.Version;

        /// <summary>Of the loaded library: major * 10000 + minor * 100 + patch.</summary>
        public static int Version
        {
            get { return Native.quire_get_version(); }
        }

        /// <summary>The same as text, such as "0.1.0".</summary>
        public static string VersionText
        {
            get { return Utf8.Static(Native.quire_get_version_string()); }
        }

        /// <summary>Until 1.0 a minor version may break the ABI, then a major one.</summary>
        internal static bool HasAbiOf(int wanted, int found)
        {
            int unit = wanted < 10000 ? 100 : 10000;
            return found >= wanted && found / unit == wanted / unit;
        }

        internal static string AsText(int number)
        {
            return number / 10000 + "." + number / 100 % 100 + "." + number % 100;
        }
    }

    internal static unsafe partial class Native
    {
        /// <summary>Before the first call: a library with another ABI is refused.</summary>
        static Native()
        {
            int found;
            try
            {
                found = quire_get_version();
            }
            catch (DllNotFoundException)
            {
                return; // which the call itself is to throw
            }
            if (!Quire.Library.HasAbiOf(Constants.Version, found))
                throw new DllNotFoundException(Library + " is of version " + Quire.Library.AsText(found) + "; this assembly needs "
                    + Quire.Library.AsText(Constants.Version) + ", or a later one with its ABI");
        }

        /// <summary>The SONAME, so that a library of another ABI is never taken.</summary>
        internal const string Library = "libquire.so.0";
    }
}
