using System;
using System.Collections.Generic;
using System.Linq;
using System.Reflection;

namespace Quire.Tests
{
    /// <summary>A method that is run as a test, each on an object of its own.</summary>
    [AttributeUsage(AttributeTargets.Method)]
    internal sealed class TestAttribute : Attribute
    {
    }

    internal sealed class CheckFailed : Exception
    {
        internal CheckFailed(string message) : base(message)
        {
        }
    }

    /// <summary>What tests ask; an answer that is not the expected one ends the test.</summary>
    internal static class Check
    {
        internal static void Equal<T>(T expected, T found, string about = "")
        {
            if (!EqualityComparer<T>.Default.Equals(expected, found))
                throw new CheckFailed(about + ": expected <" + expected + ">, found <" + found + ">");
        }

        internal static void Sequence<T>(IEnumerable<T> expected, IEnumerable<T> found, string about = "")
        {
            Equal(string.Join(", ", expected), string.Join(", ", found), about);
        }

        internal static void True(bool condition, string about)
        {
            if (!condition) throw new CheckFailed("not so: " + about);
        }

        internal static void Contains(string part, string text)
        {
            True(text.Contains(part), "<" + text + "> contains <" + part + ">");
        }

        internal static T Throws<T>(Action action) where T : Exception
        {
            try
            {
                action();
            }
            catch (T exception)
            {
                return exception;
            }
            throw new CheckFailed("expected " + typeof(T).Name + ", and nothing was thrown");
        }

        /// <summary>That the call fails so, with a message for a person.</summary>
        internal static QuireException Fails(Status status, Action action)
        {
            var exception = Throws<QuireException>(action);
            Equal(status, exception.Status, exception.Message);
            True(exception.Description.Length > 0, "a failure has a description");
            return exception;
        }
    }

    internal static class Runner
    {
        /// <summary>Runs the tests whose name contains the argument; all without one.</summary>
        private static int Main(string[] arguments)
        {
            if (arguments.Length == 1 && arguments[0] == "--leave") return Leaving.Run();
            int tests = 0, failures = 0;
            foreach (Type type in typeof(Runner).Assembly.GetTypes().OrderBy(type => type.Name, StringComparer.Ordinal))
            {
                foreach (MethodInfo method in type.GetMethods(BindingFlags.Instance | BindingFlags.NonPublic)
                    .Where(method => method.IsDefined(typeof(TestAttribute), false)))
                {
                    string name = type.Name + "." + method.Name;
                    if (arguments.Length > 0 && !name.Contains(arguments[0])) continue;
                    tests++;
                    if (!Run(type, method, name)) failures++;
                }
            }
            Shared.Close();
            Console.WriteLine("Ran {0} tests, {1} failed", tests, failures);
            return tests == 0 || failures > 0 ? 1 : 0;
        }

        private static bool Run(Type type, MethodInfo method, string name)
        {
            object test = Activator.CreateInstance(type, true);
            try
            {
                method.Invoke(test, null);
                Console.WriteLine("passed " + name);
                return true;
            }
            catch (TargetInvocationException exception)
            {
                Console.WriteLine("FAILED " + name + ": " + exception.InnerException);
                return false;
            }
            finally
            {
                (test as IDisposable)?.Dispose();
            }
        }
    }
}
