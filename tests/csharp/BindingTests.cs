using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;

namespace Quire.Tests
{
    using Values = Dictionary<string, object>;

    /// <summary>That the declarations say what bindings/interface.json and the loaded library say.</summary>
    internal sealed class BindingTests
    {
        private static readonly Assembly assembly = typeof(Runtime).Assembly;

        private readonly Values interfaceData =
            Json.ReadObject(File.ReadAllText(Path.Combine(Shared.Source, "bindings/interface.json")));

        private IEnumerable<Values> Described(string kind)
        {
            return ((List<object>)interfaceData[kind]).Cast<Values>();
        }

        /// <summary>QUIRE_FINISH_MAX_TOKENS or quire_stream_options: MAXTOKENS or STREAMOPTIONS, behind the prefix.</summary>
        private static string Letters(string name, string prefix)
        {
            return name.Substring(prefix.Length).Replace("_", "").ToUpperInvariant();
        }

        private static Type Struct(string name)
        {
            return assembly.GetTypes().Single(type => type.IsValueType
                && type.Name.ToUpperInvariant() == "NATIVE" + Letters(name, "quire_"));
        }

        [Test]
        private void StructsAreLaidOutAsInC()
        {
            Check.True(Described("structs").Count() > 20, "there are structs");
            foreach (Values described in Described("structs"))
            {
                Type type = Struct((string)described["name"]);
                Check.Equal((long)described["size"], (long)Marshal.SizeOf(type), type.Name);
                var fields = ((List<object>)described["fields"]).Cast<Values>().ToArray();
                Check.Equal(fields.Length, type.GetFields(BindingFlags.Instance | BindingFlags.Public).Length, type.Name);
                foreach (Values field in fields)
                    Check.Equal((long)field["offset"], (long)Marshal.OffsetOf(type, (string)field["name"]),
                        type.Name + "." + field["name"]);
            }
        }

        [Test]
        private void ResultsOfAGuessedLengthTakeOneCall()
        {
            foreach (int guess in new[] { 0, 4, 5, 9 })
            {
                int calls = 0;
                byte[] found = Calls.Array<byte>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                {
                    calls++;
                    error = default(NativeError);
                    needed = (UIntPtr)5u;
                    if (capacity == UIntPtr.Zero) return (int)Status.Ok;
                    if (capacity.ToUInt64() < 5) return (int)Status.BufferTooSmall;
                    for (int index = 0; index < 5; index++) Marshal.WriteByte(buffer, index, (byte)index);
                    return (int)Status.Ok;
                }, guess);
                Check.Sequence(new byte[] { 0, 1, 2, 3, 4 }, found);
                Check.Equal(guess < 5 ? 2 : 1, calls);
            }
        }

        [Test]
        private void StructSizesAreTheLibrarys()
        {
            MethodInfo[] inits = Functions().Where(method => method.Name.EndsWith("_init", StringComparison.Ordinal)).ToArray();
            Check.True(inits.Length > 10, "there are functions that initialise structs");
            IntPtr memory = Marshal.AllocHGlobal(4096);
            foreach (MethodInfo init in inits)
            {
                Type pointer = init.GetParameters()[0].ParameterType;
                int size = Marshal.SizeOf(pointer.GetElementType());
                init.Invoke(null, new object[] { memory, (UIntPtr)(uint)size });
                Check.Equal(size, Marshal.ReadInt32(memory), init.Name);
            }
            Marshal.FreeHGlobal(memory);
        }

        [Test]
        private void ConstantsHaveTheirValues()
        {
            var members = new HashSet<string>(assembly.GetTypes().Where(type => type.IsEnum)
                .SelectMany(type => Enum.GetValues(type).Cast<object>())
                .Select(member => member.ToString().Replace("_", "").ToUpperInvariant() + "=" + Convert.ToInt64(member)));
            foreach (Values constant in Described("constants"))
            {
                string name = (string)constant["name"];
                if (name == "QUIRE_VERSION" || name == "QUIRE_ERROR_MESSAGE_BYTES" || name == "QUIRE_OLD_AT_ONCE") continue;
                // QUIRE_OK is a member by its own name, QUIRE_TIER_HOST by what follows the group's.
                string rest = name.Substring(name.IndexOf('_') + 1);
                string[] names = { Letters(rest, ""), Letters(rest, rest.Substring(0, rest.IndexOf('_') + 1)) };
                Check.True(names.Any(found => members.Contains(found + "=" + constant["value"])), name);
            }
            Check.Equal(-1L, SessionOptions.OldAtOnce);
        }

        [Test]
        private void FunctionsHaveTheirParameters()
        {
            Dictionary<string, int> declared = Functions().ToDictionary(method => method.Name,
                method => method.GetParameters().Length);
            Dictionary<string, int> described = Described("functions").ToDictionary(function => (string)function["name"],
                function => ((List<object>)function["parameters"]).Count);
            Check.Sequence(described.OrderBy(pair => pair.Key, StringComparer.Ordinal),
                declared.OrderBy(pair => pair.Key, StringComparer.Ordinal));
        }

        [Test]
        private void TheLibraryIsOfTheInterface()
        {
            Check.Equal(Library.InterfaceVersion, Library.Version);
            Check.Equal((long)interfaceData["version"], (long)Library.InterfaceVersion);
            string[] parts = Library.VersionText.Split('.');
            Check.Equal(Library.Version, int.Parse(parts[0]) * 10000 + int.Parse(parts[1]) * 100 + int.Parse(parts[2]));
        }

        [Test]
        private void LaterVersionsWithTheSameAbiAreTaken()
        {
            foreach (int[] pair in new[] { new[] { 100, 100 }, new[] { 100, 102 }, new[] { 10203, 10203 }, new[] { 10203, 10300 } })
                Check.True(Library.HasAbiOf(pair[0], pair[1]), pair[0] + " " + pair[1]);
            foreach (int[] pair in new[] { new[] { 102, 100 }, new[] { 100, 200 }, new[] { 100, 10000 }, new[] { 10203, 20300 } })
                Check.True(!Library.HasAbiOf(pair[0], pair[1]), pair[0] + " " + pair[1]);
        }

        private static IEnumerable<MethodInfo> Functions()
        {
            return typeof(Native).GetMethods(BindingFlags.Static | BindingFlags.NonPublic)
                .Where(method => method.IsDefined(typeof(DllImportAttribute), false));
        }
    }
}
